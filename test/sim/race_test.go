//go:build race

package sim

// raced says that the race detector makes everything several times slower.
const raced = true
