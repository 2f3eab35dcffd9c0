//go:build race

package throttle

// raced says that the race detector makes everything several times slower.
const raced = true
