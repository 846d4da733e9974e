"""A look at somebody else's engines before requests go there: do they answer, and do they serve the pool's model?"""

import httpx

from hlserve_local.planning import PoolPlan


async def foreign_note(plan: PoolPlan, client: httpx.AsyncClient) -> str | None:
    """What the user should know about the first of a pool's foreign servers that is not as it should be; None: all are fine.

    Only a note: the server may be about to start, and its model list may be incomplete.
    """
    for url in plan.foreign:
        try:
            answer = await client.get(f"{url}/v1/models")
            answer.raise_for_status()
            served = [str(entry["id"]) for entry in answer.json()["data"]]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return f"{plan.name}: {url}/v1/models gives no list of models; requests fail until an OpenAI-compatible server is there"
        model = plan.pool.spec.model.name
        if model not in served:
            return (
                f"{plan.name}: {url} serves {', '.join(served) or 'no model'}, but the pool's model is {model}: set spec.model.name "
                "to what the server calls it, and keep the other name in spec.model.aliases"
            )
    return None
