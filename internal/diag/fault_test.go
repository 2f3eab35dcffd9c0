package diag

import (
	"strings"
	"testing"
)

// After MaxFaults one says how many more there are.
func TestFaultsAreBounded(t *testing.T) {
	t.Parallel()
	var faults Faults
	for i := range MaxFaults + 7 {
		faults.Add(Place{Line: int32(MaxFaults + 7 - i), Column: 1}, "", "no")
	}
	all := faults.All()
	if len(all) != MaxFaults+1 || all[0].Line != 8 || !strings.HasPrefix(all[MaxFaults].Reason, "7 more faults are not listed") {
		t.Errorf("%d faults, the first %v, the last %v", len(all), all[0], all[len(all)-1])
	}
}
