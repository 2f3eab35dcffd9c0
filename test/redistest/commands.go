package redistest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Commands returns how often the server ran each command while f ran, by lower case name ("evalsha", "client|list"). A command
// that a script calls counts beside the script itself, as Redis counts it. INFO, and what clients send when they connect (HELLO,
// AUTH, CLIENT SETNAME and SETINFO), are left out. Redis counts for the whole server: for an exact answer f must be all that
// talks to it, so take client from a NewServer.
func Commands(t testing.TB, client redis.UniversalClient, f func()) map[string]int {
	t.Helper()
	before := commandCounts(t, client)
	f()
	diff := map[string]int{}
	for name, n := range commandCounts(t, client) {
		if d := n - before[name]; d != 0 {
			diff[name] = d
		}
	}
	return diff
}

// Total returns the sum of the counts.
func Total(commands map[string]int) int {
	n := 0
	for _, c := range commands {
		n += c
	}
	return n
}

func commandCounts(t testing.TB, client redis.UniversalClient) map[string]int {
	t.Helper()
	info, err := client.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatalf("redistest: read commandstats: %v", err)
	}
	counts := map[string]int{}
	for line := range strings.Lines(info) {
		name, stats, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "cmdstat_"), ":")
		if !ok {
			continue
		}
		switch name {
		case "info", "hello", "auth", "client|setname", "client|setinfo":
			continue
		}
		var calls int
		if _, err := fmt.Sscanf(stats, "calls=%d,", &calls); err != nil {
			t.Fatalf("redistest: commandstats line %q: %v", line, err)
		}
		counts[name] = calls
	}
	return counts
}
