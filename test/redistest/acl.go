package redistest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/redis/go-redis/v9"
)

// User makes a user who may touch only keys that match one of patterns, and returns a client logged in as it, closed when t ends.
// Patterns are Redis globs; Literal turns keys into patterns that match them alone. Commands are names ("evalsha"), categories
// ("@read") or whole rules ("-get", "%R~key"); without any, every command is allowed. The user may subscribe to no channel.
func (s *Server) User(t testing.TB, patterns []string, commands ...string) *redis.Client {
	t.Helper()
	n := shared.passwords.Add(1)
	name, password := fmt.Sprintf("user%d", n), fmt.Sprintf("secret%d", n)
	rules := []string{"reset", "on", ">" + password}
	for _, p := range patterns {
		rules = append(rules, "~"+p)
	}
	if len(commands) == 0 {
		commands = []string{"@all"}
	}
	for _, c := range commands {
		if !strings.ContainsAny(c[:1], "+-%&") {
			c = "+" + c
		}
		rules = append(rules, c)
	}
	admin := s.Client(t)
	if err := admin.ACLSetUser(context.Background(), name, rules...).Err(); err != nil {
		t.Fatalf("redistest: make user with %q: %v", rules, err)
	}
	t.Cleanup(func() {
		// The server may have been killed by the test; the user went with it.
		_ = admin.ACLDelUser(context.Background(), name).Err()
	})
	opts := s.clientOptions()
	opts.Username, opts.Password = name, password
	return closing(t, redis.NewClient(opts))
}

// Literal returns patterns that match the keys and nothing else. Redis allows
// no white space in a pattern: each byte of it becomes "?", any one byte.
func Literal(keys ...string) []string {
	patterns := make([]string, len(keys))
	for i, key := range keys {
		var b strings.Builder
		for _, c := range []byte(key) {
			switch {
			case c == 0 || c < 0x80 && unicode.IsSpace(rune(c)):
				b.WriteByte('?')
				continue
			case strings.IndexByte(`*?[]^-\`, c) >= 0:
				b.WriteByte('\\')
			}
			b.WriteByte(c)
		}
		patterns[i] = b.String()
	}
	return patterns
}
