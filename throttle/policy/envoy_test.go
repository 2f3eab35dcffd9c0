package policy_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// Faults of envoy: a row is what stands there.
func TestEnvoyFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{a: {envoy: edge tenant}}":               `1:21: limits.a.envoy: envoy is the text "edge tenant"; write a list of descriptors, such as [edge tenant path]`,
		"{a: {envoy: []}}":                        `1:21: limits.a.envoy: envoy is empty, and no request of Envoy would spend from here; name one, or remove the line`,
		"{a: {envoy: [edge]}}":                    `1:22: limits.a.envoy: descriptor "edge" is no domain with keys; write them with one blank between, such as edge tenant path`,
		`{a: {envoy: ["edge  tenant"]}}`:          `1:22: limits.a.envoy: descriptor "edge  tenant" is no domain with keys; write them with one blank between, such as edge tenant path`,
		`{a: {envoy: ["edge a,b"]}}`:              `1:22: limits.a.envoy: descriptor "edge a,b" has a comma; write a domain and keys with one blank between, such as edge tenant path`,
		"{a: {envoy: [edge =x]}}":                 `1:22: limits.a.envoy: descriptor "edge =x" has a value without a key; write KEY or KEY=VALUE`,
		"{a: {envoy: [edge x, edge x]}}":          `1:30: limits.a.envoy: descriptor "edge x" is there already; keep one of the two`,
		`{a: {scopes: {"*": {envoy: [edge x]}}}}`: `1:37: limits.a.scopes."*".envoy: descriptor "edge x" stands at or below * or a tier, which names no scope; write it above, and let a key name the scope`,
		"{a: {tiers: {t: {envoy: [edge x]}}}}":    `1:34: limits.a.tiers.t.envoy: descriptor "edge x" stands at or below * or a tier, which names no scope; write it above, and let a key name the scope`,
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			checkFaults(t, "limits: "+text+"\n", want)
		})
	}
}

// What a policy says of descriptors is written and read back as it is.
func TestDescriptors(t *testing.T) {
	t.Parallel()
	p, err := limitsyaml.Parse("f", []byte("limits: {a: {envoy: [edge tenant kind=login, ai model=], scopes: {b: {envoy: [edge x]}}}}"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := limitsyaml.Parse("f", limitsyaml.Format(p))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*policy.Policy{p, again} {
		var all []string
		for d := range p.Descriptors() {
			all = append(all, fmt.Sprint(d))
		}
		slices.Sort(all)
		if want := []string{"{ai [{model  true}] a}", "{edge [{tenant  false} {kind login true}] a}", "{edge [{x  false}] a/b}"}; !slices.Equal(all, want) {
			t.Errorf("%q", all)
		}
	}
}
