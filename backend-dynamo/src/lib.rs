//! lockcore's backend on DynamoDB.
