"""The film: the same images through the steps, all methods side by side.

A scene of the film is one image after one step. The scenes of an image follow one another, then
comes the next image; between scenes the pictures fade. It is written as an animated WebP and,
where ffmpeg is installed, as an MP4.
"""

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from nacre.errors import NacreError
from nacre.report.pictures.by_step import PredictionsByStep, predict_by_step
from nacre.report.pictures.canvas import Grid, Tile, draw_grid
from nacre.report.pictures.predict import Color, colorize, open_data
from nacre.report.pictures.sheet import comparison_sheet
from nacre.report.results.aggregate import ScenarioResults, load_results
from nacre.utils.io import save

FADE = 4
"""Pictures between two scenes."""

FADE_SECONDS = 0.05


@dataclass(frozen=True)
class Frame:
    """A picture and for how long it is shown."""

    picture: Image.Image
    seconds: float


def write_film(
    runs: Sequence[Path],
    out: Path,
    *,
    pictures: int = 4,
    seconds: float = 1.2,
    side: int = 176,
    seed: int = 0,
    notify: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Write the film of finished runs.

    Args:
        runs: Run folders, or folders that hold run folders; of one scenario.
        out: The file to write, with or without ``.webp``; the MP4 lies beside it.
        pictures: How many images it goes through.
        seconds: How long a scene is shown.
        side: Side of a picture in pixels.
        seed: Of the random sample that images are chosen from.
        notify: Told which folders are left out.

    Returns:
        The files that were written.
    """
    found = load_results(runs, notify)
    if len(found) > 1:
        named = ", ".join(one.scenario for one in found)
        raise NacreError(f"a film shows one scenario, but the runs are of {len(found)}: {named}")
    if pictures < 1:
        raise NacreError(f"a film of {pictures} pictures shows nothing; at least 1")
    out = _film_path(out)
    frames = list(_frames(found[0], pictures, seconds, side, seed))
    save(out, lambda path: _write_webp(path, frames))
    written = [out]
    if shutil.which("ffmpeg"):
        video = out.with_suffix(".mp4")
        save(video, lambda path: _write_mp4(path, frames))
        written.append(video)
    return written


def _film_path(out: Path) -> Path:
    """Return the WebP's path: ``v1.2`` is a name without an ending, a folder is no name."""
    if out.is_dir() or out.name in ("", ".."):
        raise NacreError(f"--out {out} is a folder; give the film's name, such as {out / 'film'}")
    out = out.with_suffix("") if out.suffix.lower() in (".webp", ".mp4") else out
    return out.with_name(f"{out.name}.webp")


def _frames(
    results: ScenarioResults, pictures: int, seconds: float, side: int, seed: int
) -> Iterator[Frame]:
    data = open_data(results.rows)
    sheet = comparison_sheet(results, data, pictures, seed)
    by_step = predict_by_step(results, data, sheet.pictures)
    legend = [(sheet.classes[i], sheet.colors[i]) for i in sheet.shown_classes()]
    scenes = [
        (_scene(results, predictions, step, sheet.colors, legend, side), step == results.final)
        for predictions in by_step
        for step in range(results.final + 1)
    ]
    for i, (scene, last) in enumerate(scenes):
        yield Frame(scene, 2 * seconds if last else seconds)
        # The film is seen in a loop, so that the last scene fades into the first.
        following = scenes[(i + 1) % len(scenes)][0]
        for part in range(1, FADE + 1):
            yield Frame(Image.blend(scene, following, part / (FADE + 1)), FADE_SECONDS)


def _scene(
    results: ScenarioResults,
    predictions: PredictionsByStep,
    step: int,
    colors: Sequence[Color],
    legend: Sequence[tuple[str, Color]],
    side: int,
) -> Image.Image:
    pixels = predictions.image.pixels
    tiles = [Tile(pixels)]
    for masks in predictions.masks:
        mask = masks[step]
        tiles.append(Tile(None if mask is None else colorize(mask, colors, pixels)))
    tiles.append(Tile(colorize(predictions.image.truth, colors, pixels)))
    grid = Grid(("image", *predictions.methods, "truth"), (tuple(tiles),), side=side)
    names = results.groups[step]
    new = ", ".join(names) if len(names) <= 6 else f"{len(names)} classes"
    return draw_grid(grid, legend, f"step {step}: {'' if step == 0 else '+ '}{new}")


def _write_webp(path: Path, frames: Sequence[Frame]) -> None:
    first, *rest = [frame.picture for frame in frames]
    durations = [round(1000 * frame.seconds) for frame in frames]
    first.save(
        path, "WEBP", save_all=True, append_images=rest, duration=durations, loop=0, quality=80
    )


def _write_mp4(path: Path, frames: Sequence[Frame]) -> None:
    """Pipe the frames to ffmpeg, each as often as its time asks at the rate of the fades."""
    width, height = frames[0].picture.size
    command = ["ffmpeg", "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{width}x{height}", "-r", f"{1 / FADE_SECONDS:g}", "-i", "-"]
    command += ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart"]
    command += ["-f", "mp4", str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        # When ffmpeg stops early, its own words say why.
        with contextlib.suppress(BrokenPipeError):
            for frame in frames:
                picture = frame.picture.tobytes()
                for _ in range(max(1, round(frame.seconds / FADE_SECONDS))):
                    process.stdin.write(picture)
        _, words = process.communicate()
    if process.returncode:
        reason = words.decode(errors="replace").strip().splitlines()
        raise NacreError(f"ffmpeg could not write the film: {(reason or ['no reason'])[-1]}")
