package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/policy"
)

// Faults of hosts: a row is what stands there, at 1:21.
func TestHostsFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"api.example.com":           `1:21: limits.a.hosts: hosts is the text "api.example.com"; write a list of hosts, such as [api.example.com]`,
		"[]":                        `1:21: limits.a.hosts: hosts is empty, and no answer would count; name one, or remove the line`,
		"[https://api.example.com]": `1:22: limits.a.hosts: host "https://api.example.com" is a URL or a path; write its host alone, such as api.example.com`,
		`["a:http"]`:                `1:22: limits.a.hosts: host "a:http" has a port that is no number from 1 to 65535`,
		`["a:0"]`:                   `1:22: limits.a.hosts: host "a:0" has a port that is no number from 1 to 65535`,
		`["a:70000"]`:               `1:22: limits.a.hosts: host "a:70000" has a port that is no number from 1 to 65535`,
		`["a:b:c"]`:                 `1:22: limits.a.hosts: host "a:b:c" has no port behind its last colon; write HOST or HOST:PORT`,
		"[münchen.example]":         `1:22: limits.a.hosts: host "münchen.example" is not ASCII; write the form that begins with xn--`,
		"[a b]":                     `1:22: limits.a.hosts: host "a b" is no host; write a name such as api.example.com or *.example.com, or an address`,
		`["*"]`:                     `1:22: limits.a.hosts: host "*" is no host; write a name such as api.example.com or *.example.com, or an address`,
		`["*.192.0.2.1"]`:           `1:22: limits.a.hosts: host "*.192.0.2.1" is no host; write a name such as api.example.com or *.example.com, or an address`,
		`[a, a]`:                    `1:25: limits.a.hosts: host "a" is there already; keep one of the two`,
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			checkFaults(t, "limits: {a: {hosts: "+text+"}}\n", want)
		})
	}
	many := make([]string, 100+1)
	for i := range many {
		many[i] = fmt.Sprintf("h%d.example", i)
	}
	if _, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"a": {Hosts: many}}); err == nil || !strings.Contains(err.Error(), "hosts are 101; the most is 100") {
		t.Errorf("%v", err)
	}
}
