"""The manifests of an archive, one object for each generation, of which the highest counts."""

from datetime import UTC, datetime, timedelta

from zeroeventhub.archive.manifest import Manifest
from zeroeventhub.archive.objects import Objects
from zeroeventhub.errors import Unavailable

__all__ = ["Manifests"]

_FOLDER = "manifest"

_KEPT = 10
"""How many generations stay, however old they are."""


class Manifests:
    """Read the newest manifest, and create the next one.

    A generation is an object that is created if nobody else has created it: of two who add to the
    archive at once, one has to look again. No clock and no lock of the store is relied on.

    Args:
        objects: where they are.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def newest(self, known: Manifest) -> Manifest:
        """Return the newest manifest.

        Args:
            known: an earlier one, behind which it is looked for.

        Raises:
            ConfigurationError: it cannot be read by this version.
            Unavailable: the store did not answer.
        """
        names = self._objects.names(_FOLDER, _name(known.generation) if known.generation else "")
        whole = [name for name in names if name.endswith(_ENDING)]
        if not whole:
            return known
        try:
            return Manifest.decode(self._objects.read(f"{_FOLDER}/{whole[-1]}"))
        except FileNotFoundError:
            raise Unavailable("The archive's manifest has just been replaced.") from None

    def create(self, manifest: Manifest) -> bool:
        """Create the next generation; return whether it is the newest now.

        If not, somebody else was before, or has already gone on from this one, or the store was
        asked twice because its answer was lost: look again.

        Raises:
            Unavailable: the store did not answer, and the manifest may be there or not.
        """
        name = _name(manifest.generation)
        if not self._objects.create(f"{_FOLDER}/{name}", manifest.encode()):
            return False
        # Who slept for so long that later generations were made, and this number was tidied away,
        # has created what nobody reads.
        return not self._objects.names(_FOLDER, name)

    def tidy(self, newest: Manifest, grace: timedelta) -> None:
        """Remove manifests that are old and that nobody can still be looking at."""
        before = datetime.now(UTC) - grace
        highest = _name(max(newest.generation - _KEPT, 0))
        old = [
            name
            for name, created in self._objects.ages(_FOLDER)
            if name < highest and created < before
        ]
        self._objects.delete([f"{_FOLDER}/{name}" for name in sorted(old)])


_ENDING = ".json"


def _name(generation: int) -> str:
    return f"{generation:012}{_ENDING}"
