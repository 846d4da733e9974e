"""Two arms against each other, and the sentence that says what bought what. Pure."""

from hlserve_bench.report.model import ArmReport, Comparison, Slo


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Their quotient; None where either is unknown or the denominator is zero: no ratio, rather than an infinite one."""
    if numerator is None or not denominator:
        return None
    return numerator / denominator


def compare(class_blind: ArmReport, hlserve: ArmReport) -> Comparison:
    """HlServe over class-blind."""
    blind, ours = class_blind.classes, hlserve.classes
    shares = (ours.interactive.goodput_share, blind.interactive.goodput_share)
    return Comparison(
        agent_output_ratio=ratio(ours.agent.output_tokens_per_second, blind.agent.output_tokens_per_second),
        agent_sessions_ratio=ratio(ours.agent.sessions_per_hour, blind.agent.sessions_per_hour),
        chat_goodput_difference=None if shares[0] is None or shares[1] is None else shares[0] - shares[1],
    )


def statement(class_blind: ArmReport, hlserve: ArmReport, comparison: Comparison, slo: Slo) -> str:
    """What bought what, with the figures of this run."""
    blind, ours = class_blind.classes, hlserve.classes
    bound = f"TTFT ≤ {slo.ttft_ms / 1000:g} s and TPOT ≤ {slo.tpot_ms:g} ms"
    chat = (
        f"In simulation, a pool of its own with its own engine flags kept chat at {percent(ours.interactive.goodput_share)} "
        f"goodput ({bound}), against {percent(blind.interactive.goodput_share)} in one shared pool"
    )
    agents = (
        "admission bounded by the KV pool, with a batch sized by memory instead of TPOT, gave agents "
        f"{times(comparison.agent_output_ratio)} the output tokens and {times(comparison.agent_sessions_ratio)} the sessions an hour "
        "on the same number of GPUs"
    )
    return f"{chat}; {agents}."


def percent(share: float | None) -> str:
    """A share for people."""
    return "no" if share is None else f"{share:.0%}"


def times(value: float | None) -> str:
    """A ratio for people."""
    return "an unknown multiple of" if value is None else f"{value:.2f}×"
