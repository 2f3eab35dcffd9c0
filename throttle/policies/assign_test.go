package policies

import (
	"errors"
	"testing"
)

func TestAssign(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	ctx := t.Context()
	owner := "payments-team"
	made, err := s.Assign(ctx, anna, "payments", &owner, []string{"billing", "refunds"})
	must(t, err)
	if made.Version.Change != "assign payments owner=payments-team apps=billing,refunds" {
		t.Errorf("%+v", made.Version)
	}
	has(t, s.nowSays(t), "owner: payments-team", "apps: [billing, refunds]", "limit: 200")
	_, err = s.Assign(ctx, bert, "payments", nil, []string{}) // the owner stays
	must(t, err)
	has(t, s.nowSays(t), "owner: payments-team", "!apps:")
	if _, err = s.Assign(ctx, bert, "payments", &owner, nil); !errors.Is(err, ErrUnchanged) {
		t.Errorf("the same again: %v", err)
	}
	if _, err = s.Assign(ctx, bert, "payments", nil, []string{"a/b"}); err == nil {
		t.Error("a name that is none was taken")
	}
	_, err = s.Rollback(ctx, anna, 2)
	must(t, err)
	has(t, s.nowSays(t), "apps: [billing, refunds]")
	_, err = s.Unset(ctx, anna, "payments", "")
	must(t, err)
	has(t, s.nowSays(t), "!owner", "!apps")
	_, err = s.Import(ctx, anna, policyOf(t, "limits: {payments: {owner: other, apps: [x]}}"), "f", false)
	must(t, err)
	has(t, s.nowSays(t), "owner: other", "apps: [x]", "limit: 200")
}
