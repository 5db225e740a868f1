# The two functions were one before.
sed -i 's/\.pretend_reboot(/.pretend_boot(/' backend-sql/tests/boots.rs
