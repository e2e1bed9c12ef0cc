"""Second derivatives of programs: products with the Hessian matrix, and the matrix itself."""
