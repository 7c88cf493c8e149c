"""Frames of a video in and out: through the program ffmpeg, or else through the package PyAV."""

import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Protocol

import numpy as np
import numpy.typing as npt

from nacre.api import pyav
from nacre.errors import NacreError
from nacre.utils.packages import install_line

Pixels = npt.NDArray[np.uint8]


class Writer(Protocol):
    """Writes frames as a video."""

    def add(self, frame: Pixels) -> None:
        """Append a frame."""

    def close(self) -> None:
        """Finish the file; what was written until a stop can be played."""


def read_frames(path: Path) -> Iterator[Pixels]:
    """Yield the frames of a video, upright, height x width x RGB."""
    return _ffmpeg_frames(path) if has_ffmpeg() else pyav.read_frames(path)


def open_writer(path: Path, size: tuple[int, int], like: Path) -> Writer:
    """Begin a video of frames of a size, as fast as another video."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if has_ffmpeg():
        return FfmpegWriter(path, size, frames_per_second(like))
    return pyav.PyavWriter(path, size, pyav.frames_per_second(like))


def has_ffmpeg() -> bool:
    """Whether the program is installed.

    Raises:
        NacreError: neither it nor PyAV is.
    """
    if shutil.which("ffmpeg") is not None:
        return True
    if find_spec("av") is None:
        raise NacreError(
            "videos need the program ffmpeg or the package av, and neither is installed here: "
            + install_line("video")
        )
    return False


def _ffmpeg_frames(path: Path) -> Iterator[Pixels]:
    command = [*_ffmpeg(), "-i", str(path), "-f", "image2pipe", "-c:v", "ppm", "-"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C is for the program that reads
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        count = 0
        try:
            while (frame := _read_ppm(process.stdout)) is not None:
                count += 1
                yield frame
        except GeneratorExit:
            process.kill()
            raise
        said = process.stderr.read().decode(errors="replace").strip()
        if not count:
            reason = said.splitlines()[-1] if said else "it holds no frames"
            raise NacreError(f"the video {path} cannot be read: {reason}")


def frames_per_second(path: Path) -> str:
    """Return the frame rate of a video as ffmpeg writes it, such as ``30000/1001``."""
    probe = shutil.which("ffprobe")
    if probe is None:
        return "25"
    entry = ["-select_streams", "v:0", "-show_entries", "stream=r_frame_rate", "-of", "csv=p=0"]
    done = subprocess.run(
        [probe, "-v", "error", *entry, str(path)], capture_output=True, text=True, check=False
    )
    rate = done.stdout.strip().rstrip(",")
    return rate if rate and not rate.startswith("0/") else "25"


class FfmpegWriter:
    """Writes frames as a video through ffmpeg.

    Args:
        path: The video.
        size: Height and width of the frames.
        rate: Frames per second.
    """

    def __init__(self, path: Path, size: tuple[int, int], rate: str) -> None:
        self.path = path
        height, width = size
        source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", rate]
        # The usual colour format needs even sides.
        target = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", "-y", str(path)]
        self.process = subprocess.Popen(
            [*_ffmpeg(), *source, "-i", "-", *target],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # after a Ctrl-C ffmpeg is to finish the file
        )

    def add(self, frame: Pixels) -> None:
        """Append a frame."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(np.ascontiguousarray(frame).tobytes())
        except BrokenPipeError as error:
            raise self._failed() from error

    def close(self) -> None:
        """Finish the file."""
        _, said = self.process.communicate()
        if self.process.returncode:
            raise self._failed(said)

    def _failed(self, said: bytes | None = None) -> NacreError:
        said = self.process.communicate()[1] if said is None else said
        lines = said.decode(errors="replace").strip().splitlines()
        return NacreError(
            f"could not write the video {self.path}: {(lines or ['ffmpeg ended'])[-1]}"
        )


def _ffmpeg() -> list[str]:
    return [shutil.which("ffmpeg") or "ffmpeg", "-v", "error"]


def _read_ppm(stream: IO[bytes]) -> Pixels | None:
    """Read one picture in the format PPM, whose header tells its size."""
    if stream.readline().strip() != b"P6":
        return None
    width, height = (int(part) for part in stream.readline().split())
    stream.readline()
    content = stream.read(width * height * 3)
    if len(content) < width * height * 3:
        return None
    return np.frombuffer(content, np.uint8).reshape(height, width, 3)
