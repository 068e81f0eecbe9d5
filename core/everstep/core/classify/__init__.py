"""From the words that programs and kernels print to what happened and what to do first.

`judge.classify` is the way in; `reader.Reader` turns bytes of any size into its evidence.
"""
