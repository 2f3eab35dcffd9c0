package cli

import "strings"

// Meter draws how much of a whole is used, for a terminal: "[####......]" for 4 of 10. Something used is drawn, and something left is
// left open, however little it is. A whole of 0 is full.
func Meter(used, whole int64, width int) string {
	full := int64(width)
	if whole > 0 && used < whole {
		full = min(int64(width)-1, int64(float64(max(0, used))/float64(whole)*float64(width)))
		if full == 0 && used > 0 {
			full = 1
		}
	}
	return "[" + strings.Repeat("#", int(full)) + strings.Repeat(".", width-int(full)) + "]"
}
