  local algorithm, one, two, three, four = unpacked('>BI7I7I7I7', rule)
