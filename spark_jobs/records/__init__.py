"""Read the records of tiered topics without a broker: `format("sediment-records")`."""
