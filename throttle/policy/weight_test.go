package policy

import (
	"math"
	"testing"
)

// A name's share has a part at least, and the rest by weight.
func TestWeightAmong(t *testing.T) {
	t.Parallel()
	shares := map[string]Share{"i": {Guaranteed: 60}, "b": {Weight: 3}}
	tests := []struct {
		name string
		want float64
	}{{"i", 2 * .7}, {"b", 2 * .3}, {"other", 2 * .3}}
	for _, test := range tests {
		if got := weightAmong(shares, test.name); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s has %v, want %v", test.name, got, test.want)
		}
	}
}
