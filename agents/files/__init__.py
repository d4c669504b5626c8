"""Model files that hold data alone: a zip of a JSON header and parts in safetensors format.

`archive` is the container, `values` what stands in the header, `tensors` what stands in a part,
and `models` puts an agent or a policy into a file and takes it out. Nothing here unpickles, and
no class or function is looked up by a path from a file: names stand for rows of tables.
"""
