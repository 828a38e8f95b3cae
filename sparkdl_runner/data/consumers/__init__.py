"""A conversion as other libraries take it: torch's data sets, ``tf.data``, and mixes of loaders.

Each file is one of them; what they read by lies below.
"""
