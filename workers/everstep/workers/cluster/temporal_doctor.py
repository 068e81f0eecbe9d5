"""What the Temporal server lacks for jobs: looks, and changes nothing."""

from __future__ import annotations

from datetime import timedelta

from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from everstep.core.errors import EverstepError
from everstep.workers import runtime
from everstep.workers.cluster.finding import Finding, missing, ok, unclear
from everstep.workflows import story

PATIENCE_S = 5.0

LEAST_RETENTION = timedelta(days=30)
"""Shorter than a training run is no audit trail."""

VALUES = "deploy/temporal/values.yaml"


async def look_at_temporal() -> list[Finding]:
    """Everything that the server which the environment names can tell."""
    try:
        client = await runtime.connect(PATIENCE_S)
    except EverstepError as error:
        fix = "Name one that answers: TEMPORAL_ADDRESS, or TEMPORAL_PROFILE."
        return [missing("Temporal server", str(error), fix)]
    where = client.service_client.config.target_host
    return [
        ok("Temporal server", f"answers at {where}"),
        await _retention(client),
        await _attributes(client),
        unclear(
            "Temporal's limits",
            "no server tells its dynamic configuration; by default some of 1,200 long polls of a"
            " namespace are never served, silently",
            f"Set frontend.namespaceCount and the others in {VALUES}.",
        ),
    ]


async def _retention(client: Client) -> Finding:
    item = f"retention of {client.namespace}"
    try:
        found = await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=client.namespace)
        )
    except RPCError as error:
        fix = f"Make it: temporal operator namespace create -n {client.namespace} --retention 365d"
        return missing(item, error.message, fix)
    kept = found.config.workflow_execution_retention_ttl.ToTimedelta()
    if kept < LEAST_RETENTION:
        return missing(
            item,
            f"histories are kept for {kept / timedelta(hours=1):.0f} h",
            f"Run: temporal operator namespace update -n {client.namespace} --retention 365d",
        )
    return ok(item, f"histories are kept for {kept.days} days")


async def _attributes(client: Client) -> Finding:
    item = "search attributes"
    options = " ".join(f"--name {n} --type {kind}" for n, kind in story.ALL_KEYS.items())
    create = f"temporal operator search-attribute create -n {client.namespace} {options}"
    try:
        found = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
    except RPCError as error:
        return unclear(item, error.message, f"Have somebody run: {create}")
    lacking = [name for name in story.ALL_KEYS if name not in found.custom_attributes]
    if lacking:
        fix = f"`everstep submit` registers them where it may; or run: {create}"
        return missing(item, f"not registered: {', '.join(lacking)}", fix)
    return ok(item, "all are registered")
