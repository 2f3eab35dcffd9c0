package main

import "syscall"

// childAttr has the kernel end the programs when the demo itself is killed.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
}
