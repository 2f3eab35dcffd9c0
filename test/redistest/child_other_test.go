//go:build !linux

package redistest_test

const diesWithParent = false
