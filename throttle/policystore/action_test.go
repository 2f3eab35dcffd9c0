package policystore

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

// "The last 1,000 are kept, for 366 days after the newest", newest first, with who, why and what.
func TestActions(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	prefix := redistest.Prefix(t)
	s := New(rdb, Config{Prefix: prefix})
	if list, err := s.Actions(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("before any: %v, %v", list, err)
	}
	want := Action{
		By: "anna", Via: "page", Verb: "move", Scope: "payments/acme", Queue: "low", Scopes: []string{"payments/acme"}, To: "payments/bulk",
		Reason: "too many", Changed: 2, Left: 1, TaskIDs: []string{"a", "b", "c"},
	}
	must(t, s.RecordAction(t.Context(), want))
	list, err := s.Actions(t.Context())
	if err != nil || len(list) != 1 || time.Since(list[0].At).Abs() > time.Minute {
		t.Fatalf("%+v, %v", list, err)
	}
	want.At = list[0].At
	if got := fmt.Sprintf("%+v", list[0]); got != fmt.Sprintf("%+v", want) {
		t.Errorf("got  %s\nwant %+v", got, want)
	}
	for i := range KeptActions {
		must(t, s.RecordAction(t.Context(), Action{By: "ben", Verb: "cancel", Changed: i}))
	}
	if list, err = s.Actions(t.Context()); err != nil || len(list) != KeptActions || list[0].Changed != KeptActions-1 || list[KeptActions-1].Changed != 0 {
		t.Errorf("%d actions, %v", len(list), err)
	}
	if ttl := rdb.PTTL(t.Context(), prefix+":limits:actions").Val(); ttl < 365*24*time.Hour {
		t.Errorf("they are kept for %s", ttl)
	}
	if err := s.RecordAction(t.Context(), Action{By: "anna", Reason: strings.Repeat("x", MaxReason+1)}); !errors.As(err, new(*ReasonError)) {
		t.Errorf("a long reason: %v", err)
	}
	if err := s.RecordAction(t.Context(), Action{By: " "}); err == nil {
		t.Error("nobody has done it")
	}
	rdb.RPush(t.Context(), prefix+":limits:actions", "{")
	if list, err = s.Actions(t.Context()); err != nil || len(list) != KeptActions {
		t.Errorf("with a damaged one: %d, %v", len(list), err)
	}
}
