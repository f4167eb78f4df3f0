"""How tests are dealt to processes side by side: whole files, and to one all those that share a gateway."""

from typing import Final

from xdist.scheduler import LoadScopeScheduling

_TOGETHER: Final = "tests/served/"


class DealtByFile(LoadScopeScheduling):
    """A process that has nothing left gets the next file, in the order in which tests were collected."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _TOGETHER if file.startswith(_TOGETHER) else file
