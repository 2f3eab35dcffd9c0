package survey

import (
	"fmt"
	"testing"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/throttletest"
)

// Of the rules of a pool's members the fullest is shown, and tasks are ready as far as members have room that nothing holds.
func TestSurveyOfAPool(t *testing.T) {
	t.Parallel()
	l, err := throttle.New(redistest.Client(t), throttletest.Policy(t, `
limits:
  p:
    pool: {members: [a, b, off], choose: drain}
    scopes:
      "@*": {rules: [{name: key, algorithm: fixed-window, limit: 5, per: 30d}]}
      "@off": {paused: true}
`), throttle.Config{Prefix: redistest.Prefix(t), StartTolerance: -1})
	must(t, err)
	for range 3 {
		d, err := l.Allow(t.Context(), "p/x")
		must(t, err)
		if d.Member != "a" {
			t.Fatalf("%+v", d)
		}
	}
	if r := read(t, l).rule(t, "key"); !r.Read || r.Used != 3 {
		t.Errorf("while nothing waits: %+v", r)
	}
	var ids []string
	for i := range 6 {
		ids = append(ids, fmt.Sprint(i))
	}
	join(t, l, "p/x", ids...)
	join(t, l, "p/y", ids[:4]...)
	got := read(t, l)
	if r := got.rule(t, "key"); !r.Read || r.Used != 3 || r.Limit != 5 {
		t.Errorf("%+v", r)
	}
	if len(got.Queues) != 2 || got.Queues[0].Ready != 6 || got.Queues[1].Ready != 1 {
		t.Errorf("2 units of a and 5 of b are left: %+v", got.Queues)
	}
}
