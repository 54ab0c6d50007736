"""`sediment partitions`: what an RLM ships and serves."""

from dataclasses import asdict
from pathlib import Path

from services.api.ids import uuid_to_text
from services.api.remote_log_manager import PartitionDescription, Problem, all_descriptions
from services.cli.connections import connected_rlm
from services.cli.output import Format, print_json, print_table, say, size_text


def run(rlm: str | None, data_dir: Path | None, output: Format) -> None:
    with connected_rlm(rlm, data_dir) as manager:
        descriptions = list(all_descriptions(manager))
        log_dir_problems = manager.describe_partitions(page_size=1).log_dir_problems
    if output is Format.JSON:
        for description in descriptions:
            print_json(as_json(description))
    else:
        print_descriptions(descriptions)
    for problem in [*log_dir_problems, *(p for d in descriptions for p in d.problems)]:
        say(problem_text(problem))


def print_descriptions(descriptions: list[PartitionDescription]) -> None:
    columns = (
        "partition",
        "readable offsets",
        "local from",
        "copied through",
        "local",
        "in the tier",
        "to ship",
    )
    print_table("Partitions", columns, map(_as_row, descriptions))


def _as_row(d: PartitionDescription) -> tuple[object, ...]:
    tp = d.topic_id_partition
    return (
        f"{tp.topic}-{tp.partition}",
        f"{d.log_start_offset}-{d.log_end_offset - 1}" if d.log_end_offset > 0 else "none",
        d.local_log_start_offset,
        d.copied_through_offset,
        f"{d.local_segments} ({size_text(d.local_size_bytes)})",
        f"{d.remote_segments} ({size_text(d.remote_size_bytes)})",
        f"{d.pending_segments} ({size_text(d.pending_size_bytes)})",
    )


def as_json(description: PartitionDescription) -> dict[str, object]:
    tp = description.topic_id_partition
    return {
        "topic_id": uuid_to_text(tp.topic_id),
        "topic": tp.topic,
        "partition": tp.partition,
        **{
            name: value
            for name, value in asdict(description).items()
            if name not in ("topic_id_partition", "role", "problems")
        },
        "role": description.role and description.role.value,
        "problems": [problem_as_json(problem) for problem in description.problems],
    }


def problem_as_json(problem: Problem) -> dict[str, object]:
    return {**asdict(problem), "kind": problem.kind.value}


def problem_text(problem: Problem) -> str:
    at = "" if problem.offset is None else f" at offset {problem.offset}"
    held = f"; holds back {problem.held_segments} segment(s)" if problem.held_segments else ""
    return f"{problem.kind.value}: {problem.path}{at}: {problem.message}{held}"
