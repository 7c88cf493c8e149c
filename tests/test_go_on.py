import pytest

from nacre.cli.app import resume_command


@pytest.mark.parametrize(
    ("variables", "command"),
    [
        ({}, "nacre run --out 'my run'"),
        (
            {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1"},
            "torchrun --nproc-per-node 2 -m nacre run --out 'my run'",
        ),
        (
            {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"},
            "torchrun --nproc-per-node 4 --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:PORT "
            "-m nacre run --out 'my run'  on each of the 2 machines",
        ),
    ],
)
def test_the_resume_command_is_the_one_that_began(monkeypatch, variables, command):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert resume_command("run", "--out", "my run") == command
