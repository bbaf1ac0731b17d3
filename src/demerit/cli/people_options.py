"""Options of the commands that serve pages to people: annotate and arena."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from demerit.errors import BadInput

HostOption = Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen at.")]
PortOption = Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0 = a free one.")]
PublicNameOption = Annotated[
    str, typer.Option(metavar="HOST", help="The host name that people type, e.g. label.my-lab.org.")
]
TlsCertOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate, PEM.")]
TlsKeyOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Key of the certificate, PEM.")]
ProxyOption = Annotated[bool, typer.Option("--behind-proxy", help="A proxy in front does TLS.")]


def read_tls(cert: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """Return both files, or None; one alone is refused."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise BadInput("--tls-cert and --tls-key", "both or neither", "one")
    return cert, key
