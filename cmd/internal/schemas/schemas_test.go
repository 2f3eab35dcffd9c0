package schemas

import (
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/policy"
)

// Each field of a schema is described.
func TestEachFieldIsDescribed(t *testing.T) {
	t.Parallel()
	for _, name := range Names {
		if text := string(For(name)); strings.Contains(text, `"description": ""`) {
			t.Errorf("%s has a field that is not described", name)
		}
	}
	for _, f := range LimitsFields() {
		for _, word := range policy.Words(f.Name) {
			if !strings.Contains(f.Description, word) {
				t.Errorf("what is said of %s does not name %s: %s", f.Name, word, f.Description)
			}
		}
	}
	if n := len(LimitsFields()); n != 2+10+2+8+18 {
		t.Errorf("%d fields of limits.yaml", n)
	}
}
