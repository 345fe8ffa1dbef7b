"""What a drafter's files are, written down beside them: `dflash2_manifest.json`.

document.py   Manifest: the document, read strictly and written as a whole
files.py      which files it speaks of, and their sha256
checking.py   whether a folder still is what its manifest says; asked before a drafter is opened
"""

from dflash2_core.manifest.checking import ManifestError, differences, has_manifest, require_as_manifested
from dflash2_core.manifest.document import NAME, Manifest
from dflash2_core.manifest.files import Fingerprint

__all__ = ["NAME", "Fingerprint", "Manifest", "ManifestError", "differences", "has_manifest", "require_as_manifested"]
