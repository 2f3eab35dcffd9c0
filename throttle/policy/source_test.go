package policy_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/headway-go/headway/throttle/policy"
)

// A reader of any format says where things stand, and what it has found wrong itself.
func ExampleNewFrom() {
	limits := map[string]policy.ScopeConfig{"mail": {Rules: []policy.Rule{{Name: "all", Algorithm: policy.Concurrency, Limit: -3}}}}
	rule := &policy.Source{Line: 7, Column: 3, Fields: map[string]*policy.Source{
		"name":      {Line: 7, Column: 3},
		"algorithm": {Line: 8, Column: 3},
		"limit":     {Line: 9, Column: 11, Text: "minus three"},
	}}
	of := func(name string, part *policy.Source) *policy.Source {
		return &policy.Source{Fields: map[string]*policy.Source{name: part}}
	}
	file := of("limits", of("mail", of("rules", &policy.Source{Items: []*policy.Source{rule}})))
	_, err := policy.NewFrom(file, policy.UnmatchedDeny, limits)
	var its *policy.Error
	if errors.As(err, &its) {
		its.Name = "limits.toml"
	}
	fmt.Println(err)
	// Output:
	// limits.toml:9:11: limits.mail.rules[0].limit: limit is minus three; the least is 0
}

// "Bad says that its reader has found a fault of the value: New finds no other", and neither is it missing.
func TestNewFromTrustsNothingBad(t *testing.T) {
	t.Parallel()
	limits := map[string]policy.ScopeConfig{"a": {Rules: []policy.Rule{{}, {Name: "r", Algorithm: policy.TokenBucket}}}}
	with := func(fields map[string]*policy.Source) error {
		rules := &policy.Source{Items: []*policy.Source{{Bad: true}, {Line: 4, Column: 1, Fields: fields}}}
		scope := &policy.Source{Fields: map[string]*policy.Source{"rules": rules}}
		tree := &policy.Source{Fields: map[string]*policy.Source{"a": scope}}
		_, err := policy.NewFrom(&policy.Source{Fields: map[string]*policy.Source{"limits": tree}}, "", limits)
		return err
	}
	good, bad := &policy.Source{}, &policy.Source{Bad: true}
	if err := with(map[string]*policy.Source{"name": good, "algorithm": good, "limit": bad, "per": bad, "margin": bad}); err != nil {
		t.Errorf("what is bad has another fault: %v", err)
	}
	err := with(map[string]*policy.Source{"name": good, "algorithm": good, "limit": bad})
	if want := "policy:4:1: limits.a.rules[1]: per is missing; write the length of the window, such as 1s"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
