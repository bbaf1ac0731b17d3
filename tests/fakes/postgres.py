"""A PostgreSQL server for tests."""

import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg


def find_programs() -> Path | None:
    """Return the folder of PostgreSQL's programs; Debian keeps them out of PATH."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@contextmanager
def run_server(programs: Path) -> Iterator[str]:
    """Run a new server on a free port of this machine; yield its URL."""
    as_user: list[str] = []
    with tempfile.TemporaryDirectory(prefix="demerit-postgres-") as name, socket.socket() as free:
        folder = Path(name)
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(folder, "postgres")
            as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()

        def run(program: str, *arguments: str) -> None:
            command = [*as_user, str(programs / program), "-D", str(folder / "data"), *arguments]
            quiet = subprocess.DEVNULL
            subprocess.run(command, check=True, stdin=quiet, stdout=quiet, stderr=quiet, cwd=folder)

        run("initdb", "-U", "tester", "--auth=trust", "-E", "UTF8", "--no-sync")
        run("pg_ctl", "-w", "-o", f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off -c max_connections=200", "start")
        try:
            yield f"postgresql://tester@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-m", "immediate", "stop")


def create_database(server: str) -> str:
    """Create an empty database; return its URL."""
    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.rpartition("/")[0] + f"/{name}"
