  local algorithm, b, c, d, e, f, g, h = byte(rule, 1, 8)
  local one = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
  b, c, d, e, f, g, h = byte(rule, 9, 15)
  local two = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
  b, c, d, e, f, g, h = byte(rule, 16, 22)
  local three = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
  b, c, d, e, f, g, h = byte(rule, 23, 29)
  local four = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
