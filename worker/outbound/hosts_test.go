package outbound

import (
	"strings"
	"testing"
)

func TestParseHosts(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]hostPort{
		"Example.COM.":         {"example.com", 0},
		"example.com.:80":      {"example.com", 80},
		"10.0.0.1:8080":        {"10.0.0.1", 8080},
		"[::1]":                {"::1", 0},
		"[0:0:0::1]:443":       {"::1", 443},
		"[fe80::1%eth0]:65535": {"fe80::1%eth0", 65535},
		"my_host":              {"my_host", 0},
		"BÜCHER.test:80":       {"xn--bcher-kva.test", 80},
		"１０.0.0.1":             {"10.0.0.1", 0},
	} {
		if got, err := parseHost(entry); err != nil || got != want {
			t.Errorf("%s: %v, %v", entry, got, err)
		}
	}
	bad := []string{"", ":80", "host:", "host:0", "host:65536", "host:+80", "host:http", "::1", "::1:80", "[::1", "[::1]x", "[::1]:", "[127.0.0.1]", "[host]",
		"http://host", "10.0.0.0/8", "*.host", "a b", "a..b", ".", "user@host", "bü_cher.test", "2130706433", "host\n", strings.Repeat("a.", 130)}
	_, err := parseHosts("only host", bad)
	if err == nil {
		t.Fatal("all were accepted")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != len(bad) {
		t.Errorf("%d faults for %d bad entries:\n%v", len(lines), len(bad), err)
	}
}
