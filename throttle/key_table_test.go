package throttle

import (
	"strconv"
	"testing"
)

// Each key is found where it was put, however many there are and whatever their hashes.
func TestKeyTable(t *testing.T) {
	t.Parallel()
	const keys = 300
	tables := map[string]struct {
		room int
		hash func(string) uint64
	}{
		"one that grows": {1, keyHash},
		"all alike":      {keys, func(string) uint64 { return 7 }},
	}
	for name, way := range tables {
		table, args := newKeyTable(way.room), []any{"evalsha", "sha", 0}
		for round := range 2 {
			for i := range keys {
				key := "key" + strconv.Itoa(i)
				at, known := table.find(args, key, way.hash(key))
				if at != 3+i || known != (round == 1) {
					t.Fatalf("%s: %s is at %d, known: %t", name, key, at, known)
				}
				if !known {
					args = append(args, key)
				}
			}
		}
	}
}
