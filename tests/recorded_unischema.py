"""A schema as petastorm 0.12 pickles it, for environments without petastorm."""

from __future__ import annotations

import base64

# Unischema("S", [
#     UnischemaField("id", np.int32, (), ScalarCodec(IntegerType()), False),
#     UnischemaField("grid", np.float32, (2, 3), NdarrayCodec(), True),
#     UnischemaField("packed", np.int16, (None,), CompressedNdarrayCodec(), False),
#     UnischemaField("png", np.uint8, (4, 5, 3), CompressedImageCodec("png"), False),
# ])
SCHEMA = base64.b64decode(
    "gASV8QEAAAAAAACME3BldGFzdG9ybS51bmlzY2hlbWGUjAlVbmlzY2hlbWGUk5QpgZR9lCiMBV9uYW1llIwBU5SM"
    "B19maWVsZHOUjAtjb2xsZWN0aW9uc5SMC09yZGVyZWREaWN0lJOUKVKUKIwCaWSUaACMDlVuaXNjaGVtYUZpZWxk"
    "lJOUKGgMjAVudW1weZSMBWludDMylJOUKYwQcGV0YXN0b3JtLmNvZGVjc5SMC1NjYWxhckNvZGVjlJOUKYGUfZSM"
    "C19zcGFya190eXBllIwRcHlzcGFyay5zcWwudHlwZXOUjAtJbnRlZ2VyVHlwZZSTlCmBlHNiiXSUgZSMBGdyaWSU"
    "aA4oaB5oD4wHZmxvYXQzMpSTlEsCSwOGlGgSjAxOZGFycmF5Q29kZWOUk5QpgZSIdJSBlIwGcGFja2VklGgOKGgn"
    "aA+MBWludDE2lJOUToWUaBKMFkNvbXByZXNzZWROZGFycmF5Q29kZWOUk5QpgZSJdJSBlIwDcG5nlGgOKGgwaA+M"
    "BXVpbnQ4lJOUSwRLBUsDh5RoEowUQ29tcHJlc3NlZEltYWdlQ29kZWOUk5QpgZR9lCiMDF9pbWFnZV9jb2RlY5SM"
    "BC5wbmeUjAhfcXVhbGl0eZRLUHViiXSUgZR1aAxoHWgeaCZoJ2gvaDBoPHViLg=="
)
