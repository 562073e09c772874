"""A fresh environment with nothing but the project's wheel; what the wheel needs, it finds in this one."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path


def built(project: Path, folder: Path, kind: str, version: str = "standard") -> Path:
    """Return the ``wheel`` or the ``sdist`` of a project; the ``editable`` wheel only points to the project."""
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    builder = {"wheel": WheelBuilder, "sdist": SdistBuilder}[kind]
    (file,) = builder(str(project)).build(directory=str(folder), versions=[version])
    return Path(file)


def fresh_environment(folder: Path, wheel: Path) -> str:
    """Its Python."""
    venv.create(folder, with_pip=False)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    install = ["-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-compile", str(wheel)]
    subprocess.run([sys.executable, *install], check=True)
    (packages,) = folder.rglob("site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return str(python)
