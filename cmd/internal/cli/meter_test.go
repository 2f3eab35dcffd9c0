package cli

import "testing"

// "Something used is drawn, and something left is left open, however little it is. A whole of 0 is full."
func TestMeter(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		used, whole int64
		want        string
	}{
		{0, 10, "[..........]"}, {1, 1000, "[#.........]"}, {4, 10, "[####......]"}, {999, 1000, "[#########.]"}, {10, 10, "[##########]"},
		{25, 10, "[##########]"}, {0, 0, "[##########]"}, {-3, 10, "[..........]"}, {1 << 62, 1<<62 + 1, "[#########.]"},
	} {
		if got := Meter(test.used, test.whole, 10); got != test.want {
			t.Errorf("%d of %d: %s, want %s", test.used, test.whole, got, test.want)
		}
	}
}
