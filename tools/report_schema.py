"""Print the JSON schema of reports, generated from their dataclasses.

python tools/report_schema.py > python/arena/_report/report.schema.json
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, get_args, get_origin

from arena._report.model import FORMAT, VERSION, Block, Report
from arena._util.typed import fields_of, required

NAMES = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def schema_of(kind: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind):
        fields = {name: schema_of(hint) for name, hint in fields_of(kind).items()}
        needed = [name for name in fields if name in required(kind)]
        return {"type": "object", "properties": fields, "required": needed, "additionalProperties": False}
    if get_origin(kind) is list:
        return {"type": "array", "items": schema_of(get_args(kind)[0])}
    if get_origin(kind) is dict:
        return {"type": "object", "additionalProperties": schema_of(get_args(kind)[1])}
    if kind is Any:
        return {}
    kinds = get_args(kind) or (kind,)
    if dataclasses.is_dataclass(kinds[0]):
        return {"anyOf": [schema_of(one) for one in kinds]}
    names = [NAMES[one] for one in kinds]
    return {"type": names[0] if len(names) == 1 else names}


def main() -> None:
    schema = schema_of(Report)
    head = {"format": {"const": FORMAT}, "version": {"const": VERSION}}
    schema["properties"] = {**head, **schema["properties"], "end": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}
    schema["properties"]["blocks"] = schema_of(list[Block])
    schema["required"] = [*head, *schema["required"], "blocks"]
    title = "An arena report: what is held and why. arena.Report documents the fields."
    print(json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}, indent=1))


if __name__ == "__main__":
    main()
