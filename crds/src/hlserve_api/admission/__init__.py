"""What the API server would say to one of our custom resources, without an API server.

Unknown fields, defaults, schema and CEL rules (transition rules too), with the path of each complaint. The schemas are those of the
CRDs. Checks that need other objects belong to callers. Needs the extra `admission` of the distribution (jsonschema, a CEL
interpreter, YAML); nothing else of `hlserve_api` imports this package.
"""

from hlserve_api.admission.problem import Problem
from hlserve_api.admission.validator import Validator

__all__ = ["Problem", "Validator"]
