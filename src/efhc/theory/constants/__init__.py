"""The constants of the learning problem: L, mu, delta, sigma^2 and the minimiser w*."""
