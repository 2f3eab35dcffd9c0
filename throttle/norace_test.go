//go:build !race

package throttle

const raced = false
