"""What users write inside of kernels, and its translation from Python source to typed IR.

The modules that translate refer to one another; beginning with `statements` they load in an order that works.
"""

from diffsim.lang import statements as statements
