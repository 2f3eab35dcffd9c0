package control

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policystore"
)

// How a scope stands by few commands is what Scope answers at length.
func TestLevel(t *testing.T) {
	t.Parallel()
	a := newAsked(t, limits)
	a.use("daily/acme")
	for n := range 3 {
		a.enqueue(queue.Task{Type: "mail", ID: fmt.Sprint(n), Scope: "daily/acme"})
	}
	at, err := a.Limits(t.Context())
	if err != nil || at.Version == nil || at.Version.Number != 1 {
		t.Fatalf("%+v, %v", at, err)
	}
	for _, name := range []string{"daily", "daily/acme"} {
		long, err := a.Scope(t.Context(), admin, name)
		must(t, err)
		got, err := a.Level(t.Context(), name, at)
		if err != nil || got.Waiting != long.Waiting || len(got.Rules) != len(long.Rules) || got.Rules[got.Binding].Rule != "plan" || got.Rules[0].Used != 1 {
			t.Errorf("%s: %+v, %v; at length %+v", name, got, err, long)
		}
		if month := 30 * 24 * time.Hour; got.Done.Before(got.At.Add(2*month-time.Hour)) || got.Done.After(got.At.Add(4*month)) {
			t.Errorf("%s: all started at %s, one in 30 days at %s", name, got.Done, got.At)
		}
	}
	if got, err := a.Level(t.Context(), "off", at); err != nil || !got.Suspended {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := a.Level(t.Context(), "nowhere", at); err != nil || !got.Unmatched {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := a.store.Pause(t.Context(), policystore.Edit{By: "anna"}, "daily"); err != nil {
		t.Fatal(err)
	}
	a.follow()
	if at, err = a.Limits(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := a.Level(t.Context(), "daily/acme", at); err != nil || got.PausedScope != "daily" || got.PausedBy != "anna" || !got.Done.IsZero() {
		t.Errorf("paused: %+v, %v", got, err)
	}
	names, err := a.Providers(t.Context())
	if want := "[daily free off runs]"; err != nil || fmt.Sprint(names) != want {
		t.Errorf("%v, %v; want %s", names, err, want)
	}
}

// The scopes below are those that the limits name and those in which tasks wait; the turns are those of the tasks.
func TestOutlineAndTurns(t *testing.T) {
	t.Parallel()
	a := newAsked(t, limits)
	a.use("daily/acme")
	for n := range 3 {
		a.enqueue(queue.Task{Type: "mail", ID: fmt.Sprint(n), Scope: "daily/acme"})
	}
	a.enqueue(queue.Task{Type: "mail", ID: "g", Scope: "daily/globex"})
	out, err := a.Outline(t.Context(), "daily", 10)
	if err != nil || out.More || len(out.Branches) != 3 || out.Branches[1].Scope != "daily/acme" || out.Branches[1].Waiting != 3 || out.Branches[0].Waiting != 4 {
		t.Errorf("%+v, %v", out, err)
	}
	turns, err := a.Turns(t.Context(), "daily/acme", 1, 10)
	if err != nil || turns.All != 3 || len(turns.List) != 2 {
		t.Fatalf("%+v, %v", turns, err)
	}
	task, err := a.Task(t.Context(), admin, "1")
	must(t, err)
	if got := turns.List[0]; got.ID != "1" || got.Queue != "default" || got.Position != task[0].Position || got.Start != task[0].Start || got.Reason != task[0].Reason || got.Rule != "plan" {
		t.Errorf("%+v, and the task %+v", got, task[0])
	}
}
