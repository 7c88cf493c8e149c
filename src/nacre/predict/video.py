"""Videos, frame by frame, by PyAV."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np

from nacre.data.image_io import Pixels
from nacre.errors import NacreError
from nacre.utils.system import import_extra

_DEFAULT_RATE = Fraction(25)


def read_frames(path: Path) -> Iterator[Pixels]:
    """Yield the frames of a video, upright, height x width x RGB."""
    av = import_extra("av", "video")
    count = 0
    try:
        with av.open(str(path)) as video:
            for frame in video.decode(video=0):
                count += 1
                # The rotation of the camera is stored in degrees counterclockwise.
                pixels = frame.to_ndarray(format="rgb24")
                yield np.ascontiguousarray(np.rot90(pixels, round(frame.rotation / 90)))
    except (av.FFmpegError, IndexError, ValueError) as error:
        # A video that ends early is read up to there.
        if not count:
            reason = getattr(error, "strerror", None) or "it has no frames"
            raise NacreError(f"the video {path} cannot be read: {reason}") from error
    if not count:
        raise NacreError(f"the video {path} cannot be read: it has no frames")


class VideoWriter:
    """A video that is written frame by frame and can be played after a stop.

    Args:
        path: The video.
        size: Height and width of the frames.
        like: A video with the same frame rate.
    """

    def __init__(self, path: Path, size: tuple[int, int], like: Path) -> None:
        self.av = import_extra("av", "video")
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with self.av.open(str(like)) as video:
            rate = Fraction(video.streams.video[0].average_rate or _DEFAULT_RATE)
        # The common color format needs even sides.
        self.bottom, self.right = size[0] % 2, size[1] % 2
        try:
            self.file = self.av.open(str(path), "w")
            self.stream = self.file.add_stream("h264", rate=rate)
        except (self.av.FFmpegError, OSError) as error:
            raise self._failed(error) from error
        self.stream.height, self.stream.width = size[0] + self.bottom, size[1] + self.right
        self.stream.pix_fmt = "yuv420p"

    def add(self, frame: Pixels) -> None:
        """Add a frame."""
        even = np.pad(frame, ((0, self.bottom), (0, self.right), (0, 0)), mode="edge")
        self._write(self.av.VideoFrame.from_ndarray(np.ascontiguousarray(even), format="rgb24"))

    def close(self) -> None:
        """Finish the file."""
        self._write(None)
        self.file.close()

    def _write(self, frame: object) -> None:
        try:
            for packet in self.stream.encode(frame):
                self.file.mux(packet)
        except (self.av.FFmpegError, OSError) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> NacreError:
        return NacreError(f"the video {self.path} cannot be written: {error}")
