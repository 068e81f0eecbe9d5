"""The Temporal server of a local run: the one that the environment names, or one of its own."""

from __future__ import annotations

import asyncio
import logging

from temporalio.client import Client

from everstep.core.errors import InputError, PermanentError, TransientError
from everstep.workers import runtime
from everstep.workers.local import ports, server
from everstep.workers.local.children import Child
from everstep.workers.local.folder import RunFolder
from everstep.workers.local.narrator import Narrator
from everstep.workers.local.ports import HOST
from everstep.workers.local.processes import STOP_PATIENCE_S, Processes, last_line
from everstep.workers.settings import WorkerSettings

logger = logging.getLogger(__name__)

PREFERRED_UI_PORT = 8233
SERVER_PATIENCE_S = 60.0
NAMED_SERVER_PATIENCE_S = 5.0
"""A server that is there already answers at once; one that we start takes a second or two."""


class NoServerError(TransientError):
    """The server that the environment names does not answer; nothing of the run has begun.

    Args:
        named: What names it.
        said: Why it does not.
    """

    def __init__(self, named: str, said: str) -> None:
        super().__init__(named, said)
        self.named = named
        self.said = said

    def __str__(self) -> str:
        return (
            f"TEMPORAL_ADDRESS or TEMPORAL_PROFILE ({self.named}): {self.said}. Start it, correct"
            " the variable, or unset it for a server of the run's own."
        )


class ServerOfRun:
    """Connects a run to its server.

    Args:
        given: Settings of the run's processes.
        processes: Those of the run, which a server of its own joins.
        folder: The run's, where the server's place is noted.
        narrator: Who tells a person.
        temporal_port: Wanted port, or None.
        ui_port: Wanted port of its web UI, or None.
    """

    def __init__(
        self,
        given: WorkerSettings,
        processes: Processes,
        folder: RunFolder,
        narrator: Narrator,
        temporal_port: int | None,
        ui_port: int | None,
    ) -> None:
        self._given = given
        self._processes = processes
        self._folder = folder
        self._narrator = narrator
        self._temporal_port = temporal_port
        self._ui_port = ui_port

    async def connect(self) -> Client:
        """A client of the server that the environment names, else of one that is started.

        Raises:
            NoServerError: The one that is named does not answer.
            InputError: A wanted port is taken.
            PermanentError: The one that is started ends.
            TransientError: It does not answer.
        """
        if (named := server.named_by_environment()) is not None:
            return await self._named_server(named)
        return await self._own_server()

    async def _named_server(self, named: str) -> Client:
        self._narrator.say(f"using the Temporal server that the environment names ({named})")
        try:
            client = await runtime.connect(NAMED_SERVER_PATIENCE_S)
        except TransientError as error:
            raise NoServerError(named, str(error)) from error
        if registered := await server.register_search_attributes(client):
            self._narrator.say(f"registered search attributes there: {', '.join(registered)}")
        where = {
            "own": False,
            "address": client.service_client.config.target_host,
            "namespace": client.namespace,
        }
        self._folder.write_state(temporal=where, ui="")
        return client

    async def _own_server(self) -> Client:
        binary = server.find_binary()
        # Another run may take a port between our look and our server's: then others are tried.
        for preferred_ui_port in (PREFERRED_UI_PORT, None):
            try:
                return await self._try_server(binary, preferred_ui_port)
            except InputError:
                raise
            except PermanentError as error:
                logger.info("%s; trying again", error)
                await self._processes.all.pop("server").stop(STOP_PATIENCE_S)
        return await self._try_server(binary, None)

    async def _try_server(self, binary: str, preferred_ui_port: int | None) -> Client:
        port = ports.wanted_port(HOST, self._temporal_port, "--temporal-port")
        ui_port = ports.wanted_port(HOST, self._ui_port, "--ui-port", preferred=preferred_ui_port)
        address, ui = f"{HOST}:{port}", f"http://{HOST}:{ui_port}"
        server.use(address)
        # Where the server is stands in this process' own environment now.
        self._processes.use(self._given.environment())
        command = server.command(binary, self._folder.database.absolute(), HOST, port, ui_port)
        child = await self._processes.start("server", command)
        client = await self._first_answer(child)
        await server.keep_histories(client)
        self._folder.write_state(temporal={"own": True, "address": address}, ui=ui)
        self._narrator.say(f"Temporal's web UI: {ui}/namespaces/{server.NAMESPACE}/workflows")
        return client

    async def _first_answer(self, child: Child) -> Client:
        """Connect to a server that was just started; one that ends now would end every time.

        Raises:
            PermanentError: It ended.
            TransientError: It does not answer.
        """
        connecting = asyncio.create_task(runtime.connect(SERVER_PATIENCE_S))
        try:
            while not connecting.done():
                await asyncio.wait([connecting], timeout=0.1)
                if child.restarts:
                    raise PermanentError(
                        f"the Temporal server does not start: {last_line(child.log)}"
                    )
            return await connecting
        finally:
            connecting.cancel()
