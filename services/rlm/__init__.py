"""Copy one broker's rolled segments to the tier and serve their records, local or remote."""
