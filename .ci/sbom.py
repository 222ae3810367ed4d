"""The bill of materials of a release: the wheel and everything it needs, as installed here."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL


def needed(name: str, found: dict[str, str]) -> None:
    """Versions of a distribution and of what it needs without extras."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found:
        return
    try:
        found[key] = metadata.version(name)
    except metadata.PackageNotFoundError:
        return
    for requirement in metadata.requires(name) or ():
        if ";" not in requirement or "extra" not in requirement:
            needed(re.split(r"[\s<>=!~;\[(]", requirement, maxsplit=1)[0], found)


def main(path: str) -> None:
    """Write the document."""
    found: dict[str, str] = {}
    needed("askgauss", found)
    bom = Bom()

    def component(name: str, kind: ComponentType) -> Component:
        return Component(
            name=name,
            version=found[name],
            bom_ref=f"{name}@{found[name]}",
            type=kind,
            purl=PackageURL("pypi", name=name, version=found[name]),
        )

    root = component("askgauss", ComponentType.LIBRARY)
    bom.metadata.component = root
    parts = [component(name, ComponentType.LIBRARY) for name in sorted(found) if name != "askgauss"]
    for part in parts:
        bom.components.add(part)
    bom.register_dependency(root, parts)
    Path(path).write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n", encoding="utf-8")
    print(f"{path}: {len(found)} packages")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "dist/sbom.json")
