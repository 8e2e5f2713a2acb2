"""The strings below the fields of a model, as descriptions in its JSON Schema.

pydantic's own `use_attribute_docstrings` reads the source of each model when it is made: a third of the time that
importing contracts takes. Here it is read when a schema or a message asks for it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema


@cache
def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return the string below each field that has one, of a model and its bases."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not issubclass(base, BaseModel) or base is BaseModel:
            continue
        try:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, SyntaxError, ValueError):
            # Made by a call, or where no source is.
            continue
        for field, below in pairwise(definition.body if isinstance(definition, ast.ClassDef) else []):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                found[field.target.id] = inspect.cleandoc(below.value.value)
    return found


class Documented:
    """Beside BaseModel among the bases of models whose JSON Schema has the strings below their fields."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Add them to what pydantic writes."""
        schema = handler(core_schema)
        assert issubclass(cls, BaseModel)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in field_docs(cls).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return schema
