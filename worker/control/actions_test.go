package control

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policystore"
)

// "The last 1,000 are kept, for 366 days after the newest", newest first.
func TestActionsAreKept(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	prefix := redistest.Prefix(t)
	s := &Service{rdb: rdb, prefix: prefix, store: policystore.New(rdb, policystore.Config{Prefix: prefix})}
	if list, err := s.AllActions(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("before any: %v, %v", list, err)
	}
	want := Action{
		By: "anna", Via: "page", Verb: "move", Scope: "payments/acme", Queue: "low", Scopes: []string{"payments/acme"}, To: "payments/bulk",
		Reason: "too many", Changed: 2, Left: 1, TaskIDs: []string{"a", "b", "c"},
	}
	record := func(a Action) {
		t.Helper()
		if err := s.recordAction(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	record(want)
	list, err := s.AllActions(t.Context())
	if err != nil || len(list) != 1 || time.Since(list[0].At).Abs() > time.Minute {
		t.Fatalf("%+v, %v", list, err)
	}
	want.At = list[0].At
	if got := fmt.Sprintf("%+v", list[0]); got != fmt.Sprintf("%+v", want) {
		t.Errorf("got  %s\nwant %+v", got, want)
	}
	for i := range KeptActions {
		record(Action{By: "ben", Verb: "cancel", Changed: i})
	}
	rdb.RPush(t.Context(), s.actionsKey(), "{") // a later release
	if list, err = s.AllActions(t.Context()); err != nil || len(list) != KeptActions || list[0].Changed != KeptActions-1 || list[KeptActions-1].Changed != 0 {
		t.Errorf("%d actions, %v", len(list), err)
	}
	if ttl := rdb.PTTL(t.Context(), s.actionsKey()).Val(); ttl < 365*24*time.Hour {
		t.Errorf("they are kept for %s", ttl)
	}
}
